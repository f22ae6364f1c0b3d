"""A module that imports what is not installed."""

import a_package_that_is_not_installed
