//! What a refusal says about where a command belongs, or when. Pure.

use std::time::Duration;

use super::address::Address;

/// Where, or when, a command that was refused may be executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot belongs to that node.
    Moved(Address),
    /// The slot is on its way to that node, and the key is not here any more.
    Ask(Address),
    /// This server does not take it at the moment. The map may be about to change.
    Later(Duration),
}

impl Redirect {
    /// Reads the refusal of the node at `asked`. In every case the command was not executed. `None`: it is
    /// about the command.
    pub(super) fn read(text: &str, asked: &Address) -> Option<Self> {
        // Up to Redis 6.2 an error inside a script is wrapped.
        if text.starts_with("ERR Error running script") && text.contains("READONLY") {
            return Some(Self::Later(READ_ONLY));
        }
        let mut words = text.split(' ');
        let word = words.next()?;
        let mut address = || Address::read(words.nth(1)?.trim_end(), asked);
        Some(match word {
            "MOVED" => Self::Moved(address()?),
            "ASK" => Self::Ask(address()?),
            "READONLY" => Self::Later(READ_ONLY),
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => Self::Later(Duration::from_millis(100)),
            _ => return None,
        })
    }
}

/// A replica that is about to be the primary, or a primary that has become a replica.
const READ_ONLY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_where_or_when() {
        let asked = Address::new("10.0.0.1", 7000);
        let read = |text| Redirect::read(text, &asked);
        let other = || Address::new("10.0.0.2", 7001);
        assert_eq!(
            read("MOVED 3999 10.0.0.2:7001"),
            Some(Redirect::Moved(other()))
        );
        assert_eq!(read("ASK 3999 10.0.0.2:7001"), Some(Redirect::Ask(other())));
        let here = Address::new("10.0.0.1", 7001);
        assert_eq!(read("MOVED 3999 :7001"), Some(Redirect::Moved(here)));
        for text in [
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
        ] {
            assert!(matches!(read(text), Some(Redirect::Later(_))), "{text}");
        }
        for text in [
            "",
            "MOVED",
            "MOVED 3999",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR unknown command",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
