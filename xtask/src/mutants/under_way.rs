//! The mark of a run that is under way.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::Problem;

/// A file in the build folder for as long as a run lasts. One that is found at the start was left by
/// a run that was killed, perhaps in the middle of a compiler's work: programs that were built upon
/// its incremental data have panicked in a tree without a bug.
pub struct UnderWay {
    mark: PathBuf,
}

impl UnderWay {
    pub fn begin(build: &Path) -> Result<Self, Problem> {
        let mark = build.join("run-under-way");
        if mark.exists() {
            println!(
                "the last run was killed: removing the incremental data in {}",
                build.display()
            );
            remove_incremental(build)?;
        }
        fs::create_dir_all(build)?;
        fs::write(&mark, "")?;
        Ok(Self { mark })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.mark);
    }
}

/// Each profile has its own: `debug/incremental`, `sim/incremental`.
fn remove_incremental(build: &Path) -> io::Result<()> {
    for profile in fs::read_dir(build)? {
        let incremental = profile?.path().join("incremental");
        if incremental.is_dir() {
            fs::remove_dir_all(incremental)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incremental_data_goes_only_after_a_run_that_was_killed() {
        let build = std::env::temp_dir().join(format!("run-under-way-{}", std::process::id()));
        let data = build.join("debug/incremental/a");
        let other = build.join("debug/deps");
        for folder in [&data, &other] {
            fs::create_dir_all(folder).expect("a temporary folder");
        }
        let first = UnderWay::begin(&build).expect("begun");
        drop(first);
        let second = UnderWay::begin(&build).expect("begun");
        assert!(data.is_dir(), "the first run has come to its end");
        // As if it had been killed.
        std::mem::forget(second);
        let third = UnderWay::begin(&build).expect("begun");
        assert!(!data.exists() && other.is_dir());
        drop(third);
        assert!(!build.join("run-under-way").exists());
        fs::remove_dir_all(&build).expect("removed");
    }
}
