"""Emulated counterpart of a package of the same name; see `ppscope.emulator`."""
