#include "privilege.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool fail(const char *step, char *why, size_t why_size)
{
    snprintf(why, why_size, "root's other rights cannot be given up (%s: %s)", step, strerror(errno));
    return false;
}

bool privilege_drop(char *why, size_t why_size)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct kept[2] = {{0}, {0}};

    /* Locked first: from here on uid 0 alone gives no capability back, by exec or by setuid. */
    if (prctl(PR_SET_SECUREBITS,
              SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
                  SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED,
              0, 0, 0) != 0)
        return fail("securebits", why, why_size);
    for (int capability = 0; capability < 64; capability++) {
        if (capability == CAP_SYS_ADMIN)
            continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) {
            if (errno == EINVAL) /* past the last one this kernel knows */
                break;
            return fail("bounding set", why, why_size);
        }
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return fail("no_new_privs", why, why_size);
    kept[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective = CAP_TO_MASK(CAP_SYS_ADMIN);
    kept[CAP_TO_INDEX(CAP_SYS_ADMIN)].permitted = CAP_TO_MASK(CAP_SYS_ADMIN);
    if (syscall(SYS_capset, &header, kept) != 0)
        return fail("capset", why, why_size);
    return true;
}
