"""Trellis inside a Django project: put `"trellis.integrations.django"` into INSTALLED_APPS.

Every app's `jobs.py` is imported, jobs are kept in Django's own database unless `TRELLIS` in the
settings says otherwise, plain handlers get fresh connections, and `manage.py trellis` is the
command line. `tasks.TrellisBackend` serves Django's own Tasks API. Nothing here is imported by the
rest of Trellis: Django imports it.
"""
