//! The command in its process group: started, signalled, and seen to its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::exit;

/// What happened to the command itself, the group's first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended; with the exit code that says how.
    Ended(u8),
    Stopped(Signal),
    Continued,
}

/// A process group with the command as its leader. Dropped before it is empty, which only a panic
/// does, it is killed.
pub(crate) struct Group {
    id: Pid,
    is_over: bool,
}

/// Where the command finds the token of a fenced lock.
const TOKEN: &str = "REDISSON_LOCK_TOKEN";

impl Group {
    /// Starts the command in a group of its own. It has left the old group before it runs.
    pub(crate) fn start(command: &[OsString], token: Option<u64>) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // Processes of the group whose parents end become children of this program, which reaps
        // them: a group with a zombie never becomes empty, and in a container nobody else reaps.
        // Where that is refused, the system's first process does it, as on other systems.
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_child_subreaper(true);
        let child = Command::new(program)
            .args(arguments)
            // Of a lock around this one.
            .env_remove(TOKEN)
            .envs(token.map(|token| (TOKEN, token.to_string())))
            .process_group(0)
            .spawn()?;
        let id = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self {
            id: Pid::from_raw(id),
            is_over: false,
        })
    }

    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Sends a signal to every process of the group. One that is gone needs none.
    pub(crate) fn send(&self, signal: Signal) {
        match killpg(self.id, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => {
                super::text::say(&format!("{signal} cannot be sent to the command: {error}"));
            }
        }
    }

    /// Asks every process of the group to end. One that is stopped sees that only when it
    /// continues.
    pub(crate) fn terminate(&self) {
        self.send(Signal::SIGTERM);
        self.send(Signal::SIGCONT);
    }

    /// Reaps children, and returns what happened to the command last, if anything did since the last
    /// call.
    pub(crate) fn reap(&self) -> Option<Change> {
        let mut last = None;
        let options = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        loop {
            match waitpid(None, Some(options)) {
                Ok(WaitStatus::Exited(id, code)) if id == self.id => {
                    // The system hands on eight bits of it.
                    last = Some(Change::Ended((code & 0xff) as u8));
                }
                Ok(WaitStatus::Signaled(id, signal, _)) if id == self.id => {
                    last = Some(Change::Ended(exit::by_signal(signal)));
                }
                Ok(WaitStatus::Stopped(id, signal)) if id == self.id => {
                    last = Some(Change::Stopped(signal));
                }
                Ok(WaitStatus::Continued(id)) if id == self.id => last = Some(Change::Continued),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return last,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    super::text::say(&format!("the command cannot be waited for: {error}"));
                    return last;
                }
            }
        }
    }

    /// Whether nobody is left in the group. To be called once the command has ended: its id stays
    /// taken for as long as its group has a process, so no other group is meant.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.is_over = self.is_over || killpg(self.id, None) == Err(Errno::ESRCH);
        self.is_over
    }

    /// Nothing more can be done about those that are left.
    pub(crate) fn give_up(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = killpg(self.id, Signal::SIGKILL);
        }
    }
}
