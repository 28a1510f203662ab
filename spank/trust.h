/* Is a file such that only root can have put it there? */
#ifndef EERL_TRUST_H
#define EERL_TRUST_H

#include <stdbool.h>
#include <stddef.h>

/* True when the file at this absolute path, and every folder above it, belong to root and cannot be written
 * by anyone else (a sticky folder such as /tmp may be: others cannot replace root's entries in it). Symbolic
 * links are refused, except a last component that points to a name in its own folder, as libraries have. */
bool trusted_file(const char *path, char *why, size_t why_size);

#endif
