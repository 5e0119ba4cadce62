"""For every test: an interrupt means what it means in a terminal, also where the suite was started in the background."""

from __future__ import annotations

import signal

# A shell without job control starts background jobs with SIGINT ignored, and children inherit that: ctrl-c could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
