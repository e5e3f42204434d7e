//! Pages of `docs/` that a command writes, whole.

use std::process::Command;

use crate::{Problem, tools};

/// Writes a page, with its title and the command that writes it in front.
pub fn write(file: &str, title: &str, command: &str, text: &str) -> Result<(), Problem> {
    let page = format!("# {title}\n\n<!-- Written by `{command}`: do not edit it. -->\n\n{text}\n");
    fs_err::write(tools::root().join(file), page)?;
    println!("written: {file}");
    Ok(())
}

/// When and where a run was: `2026-11-22, 2 cores, rustc 1.95.0`.
pub fn when_and_where() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rustc = said("rustc", &["--version"]);
    let version: Vec<&str> = rustc.split(' ').take(2).collect();
    format!("{}, {cores} cores, {}", today(), version.join(" "))
}

/// `2026-11-22`
pub fn today() -> String {
    said("date", &["+%Y-%m-%d"])
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_with_its_day_and_its_compiler() {
        let reported = when_and_where();
        let words: Vec<&str> = reported.split(", ").collect();
        assert!(
            matches!(words.as_slice(), [day, cores, rustc]
                if day.len() == 10 && cores.ends_with(" cores") && rustc.starts_with("rustc 1.")),
            "{reported}"
        );
    }
}
