//! The terminal on stdin: which process group may read from it, and who can continue a stopped one.

use std::io::IsTerminal;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::unistd::{Pid, getpgrp, getsid, tcgetpgrp, tcsetpgrp};

/// A terminal that controls this program.
pub(crate) struct Terminal;

impl Terminal {
    /// The one on stdin, if it is one.
    pub(crate) fn on_stdin() -> Option<Self> {
        let stdin = std::io::stdin();
        (stdin.is_terminal() && tcgetpgrp(&stdin).is_ok()).then_some(Self)
    }

    /// Whether this group is the one in the foreground.
    pub(crate) fn is_at(&self, group: Pid) -> bool {
        tcgetpgrp(std::io::stdin()) == Ok(group)
    }

    /// Makes the group the one in the foreground. A group that is gone cannot be.
    pub(crate) fn hand_to(&self, group: Pid) {
        // From the background the call would stop this program, unless it blocks the signal. Only
        // here: the command would inherit it.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else {
            return;
        };
        let _ = tcsetpgrp(std::io::stdin(), group);
        let _ = before.thread_set_mask();
    }

    /// Hands the terminal to `group` if this program's own group is in the foreground. A job that
    /// runs in the background must not take it.
    pub(crate) fn hand_over_from_own(&self, group: Pid) -> bool {
        let own = self.is_at(getpgrp());
        if own {
            self.hand_to(group);
        }
        own
    }
}

/// Whether a shell would continue this program's group after a stop. In the group of the session's
/// leader there is nobody above who could: in a container, under cron, behind `ssh host command`.
pub(crate) fn has_a_shell_above() -> bool {
    getsid(None).is_ok_and(|session| session != getpgrp())
}

/// Stops this program's whole group, as the terminal would: a script around it stops too, and the
/// shell sees that. Comes back when somebody continues it.
pub(crate) fn stop_own_group() {
    let _ = killpg(getpgrp(), Signal::SIGSTOP);
}
