"""Trellis in a Django project: put `"trellis.integrations.django"` into INSTALLED_APPS.

`apps.py` imports every app's `jobs.py` and gives plain handlers fresh connections;
`configuration.py` reads `TRELLIS` in the settings (by default jobs are kept in Django's database);
`service.py` names the service; `tasks.py` is a backend for Django's Tasks API; `management` makes
the command line available as `manage.py trellis`. May import `service` and what is below it; no
other package imports this one. Start reading at `apps.py`.
"""
