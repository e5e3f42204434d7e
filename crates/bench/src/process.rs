//! What a process uses, as Linux tells in `/proc`.

use std::fs;

/// Processor time of a process, in milliseconds; Linux counts it in steps of ten.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub user: f64,
    /// In the kernel, for this process.
    pub system: f64,
}

impl Cpu {
    /// So far.
    pub fn of(process: u32) -> Self {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux, and it runs");
        // The name of the program is in parentheses and may contain anything.
        let after_name = text.rsplit(')').next().unwrap_or_default();
        let mut fields = after_name.split_whitespace().skip(11);
        let mut ticks = || -> f64 {
            fields
                .next()
                .and_then(|field| field.parse().ok())
                .expect("a number of ticks")
        };
        let (user, system) = (ticks(), ticks());
        Self {
            user: user * MS_PER_TICK,
            system: system * MS_PER_TICK,
        }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }

    pub fn sum(self) -> f64 {
        self.user + self.system
    }
}

/// Memory of a process that is in RAM, in bytes.
pub fn resident(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("Linux, and it runs");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("it has memory");
    let kilobytes: f64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kilobytes * 1024.0
}

/// `CLK_TCK` is 100 on every Linux that Rust runs on.
const MS_PER_TICK: f64 = 10.0;
