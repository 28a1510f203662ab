"""What runs inside the trainer: one small module per framework, and what they share.

Standard library only, Python 3.10 on. eerl-run copies this package, with :mod:`eerl_launch.mark`, into the job's
private folder under the name ``eerl_trainer`` and puts that folder first on PYTHONPATH, so that it works in any
environment and container; imports in here are therefore relative. ``ADAPTERS.md`` says how to write an adapter.
"""
