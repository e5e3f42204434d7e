//! Asks every server all the time which role it has, and a node of a cluster whether it sees the cluster working.

use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::sleep;
use std::time::Instant;

use test_support::{Control, ms};

use crate::oracle::Slots;
use crate::plain;

/// A server has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    pub port: u16,
    pub at: Instant,
}

/// One of the servers.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    pub nth: usize,
    pub port: u16,
}

/// Something that was heard of the servers.
pub struct Said {
    pub at: Instant,
    pub line: String,
    pub news: News,
}

pub enum News {
    Nothing,
    /// From here on a server is the primary, or is announced as such.
    Switched {
        port: u16,
        slots: Slots,
    },
    /// From here on a server is none any more.
    Demoted(u16),
    /// A primary says that the cluster does not work, until then.
    Down {
        until: Instant,
    },
}

/// What is said of the servers, kept until it is wanted.
pub struct Ear {
    said: Receiver<Said>,
    kept: Vec<Said>,
}

impl Ear {
    pub fn new(said: Receiver<Said>) -> Self {
        Self {
            said,
            kept: Vec::new(),
        }
    }

    /// Waits until one of these servers takes over.
    pub fn switched(
        &mut self,
        since: Instant,
        limit: Instant,
        replicas: &[Node],
    ) -> Option<Switch> {
        let is_meant = |port| replicas.iter().any(|one| one.port == port);
        loop {
            self.kept.extend(self.said.try_iter());
            let switch = self.kept.iter().find_map(|one| match one.news {
                News::Switched { port, .. } if one.at >= since && is_meant(port) => {
                    Some(Switch { port, at: one.at })
                }
                _ => None,
            });
            if switch.is_some() || Instant::now() > limit {
                return switch;
            }
            sleep(ms(5));
        }
    }

    pub fn all(&mut self) -> Vec<Said> {
        self.kept.extend(self.said.try_iter());
        std::mem::take(&mut self.kept)
    }
}

/// Until nobody listens any more.
pub fn roles(ports: &[u16], is_cluster: bool, said: &Sender<Said>) {
    for &port in ports {
        let mut watched = Watched {
            port,
            is_cluster,
            control: None,
            is_primary: None,
            down: None,
        };
        let said = said.clone();
        std::thread::spawn(move || {
            loop {
                for one in watched.look_again() {
                    if said.send(one).is_err() {
                        return;
                    }
                }
                sleep(ms(15));
            }
        });
    }
}

struct Watched {
    port: u16,
    is_cluster: bool,
    control: Option<Control>,
    /// As it said last.
    is_primary: Option<bool>,
    /// Since when it says that the cluster is down, and when it said so last.
    down: Option<(Instant, Instant)>,
}

impl Watched {
    fn look_again(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        if let Ok(role) = self.query(&["ROLE"]) {
            said.extend(self.has_role(role.starts_with("master")));
        }
        if self.is_cluster && self.is_primary == Some(true) {
            let info = self.query(&["CLUSTER", "INFO"]);
            said.extend(self.works(info.ok().map(|info| info.contains("cluster_state:ok"))));
        } else {
            said.extend(self.works(None));
        }
        said
    }

    fn query(&mut self, words: &[&str]) -> Result<String, String> {
        let mut control = match self.control.take() {
            Some(control) => control,
            None => Control {
                connection: plain::connect(self.port, plain::ANSWERS_WITHIN)?,
            },
        };
        let answer = control.try_run(words).map_err(|error| error.to_string())?;
        self.control = Some(control);
        Ok(answer)
    }

    fn has_role(&mut self, is_primary: bool) -> Option<Said> {
        let at = Instant::now();
        let before = self.is_primary.replace(is_primary);
        let port = self.port;
        let said = |what: &str, news| {
            let line = format!("port {port} says that it is {what}");
            Some(Said { at, line, news })
        };
        match (before, is_primary) {
            (Some(true), false) => said("a replica", News::Demoted(port)),
            (Some(false), true) if self.is_cluster => {
                // Together with the role it has taken the hash slots.
                let nodes = self.query(&["CLUSTER", "NODES"]).unwrap_or_default();
                let slots = own_slots(&nodes);
                said("a primary", News::Switched { port, slots })
            }
            (Some(false), true) => said("a primary", News::Nothing),
            _ => None,
        }
    }

    /// Answers when it is over.
    fn works(&mut self, works: Option<bool>) -> Option<Said> {
        let at = Instant::now();
        match (works, self.down) {
            (Some(false), before) => {
                let since = before.map_or(at, |(since, _)| since);
                self.down = Some((since, at));
                None
            }
            (_, Some((since, last))) => {
                self.down = None;
                let until = if works.is_some() { at } else { last };
                Some(Said {
                    at: since,
                    line: format!(
                        "port {} says that the cluster is down, for {:?}",
                        self.port,
                        until - since
                    ),
                    news: News::Down { until },
                })
            }
            (_, None) => None,
        }
    }
}

/// What a node says of itself.
fn own_slots(nodes: &str) -> Slots {
    let own = nodes.lines().find(|line| line.contains("myself"));
    let ranges = own.into_iter().flat_map(|line| line.split(' ').skip(8));
    ranges.filter_map(range).collect()
}

/// `None`: a hash slot on its way.
pub fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_which_slots_it_has() {
        let nodes = "a 127.0.0.1:1@2 master - 0 1 3 connected 0-9\n\
             b 127.0.0.1:3@4 myself,master - 0 0 4 connected 10-99 7 [7->-a]";
        assert_eq!(own_slots(nodes), [10..=99, 7..=7]);
    }
}
