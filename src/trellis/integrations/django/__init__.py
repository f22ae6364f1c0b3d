"""Trellis in a Django project: put `"trellis.integrations.django"` into INSTALLED_APPS.

`apps.py` imports every app's `jobs.py` and gives plain handlers fresh connections;
`configuration.py` reads `TRELLIS` in the settings, by default jobs are kept in Django's database;
`tasks.py` is a backend for Django's Tasks API; `management` makes the command line available as
`manage.py trellis`. The rest of Trellis imports nothing from here; Django does.
"""
