//! Every server that was ever named, by its number, its identity and its addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::values::NODES_MAX;
use crate::base::runtime::event;
use crate::redis::node::Node;
use crate::redis::node::endpoint::ServerId;
use crate::redis::node::slots::Named;
use crate::redis::settings::address::Address;

/// None is forgotten: its last connection is to be fenced when it is used again, and answers under way are
/// judged by its number.
#[derive(Default)]
pub(super) struct Registry {
    nodes: Vec<Arc<Node>>,
    ids: BTreeMap<ServerId, u16>,
    /// Whose address it was last.
    addresses: BTreeMap<Address, u16>,
}

/// The node that a table or a redirect means by a name.
pub(super) struct Found {
    pub(super) number: u16,
    /// Another server than before has this number: it was reset, or took the address of one that is gone.
    pub(super) replaced: bool,
    /// Another number, given to this address before its server was known.
    pub(super) alias: Option<u16>,
}

impl Found {
    fn same(number: u16) -> Self {
        Self {
            number,
            replaced: false,
            alias: None,
        }
    }
}

/// The outcome for a number when its connection reported an identity.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberOutcome {
    /// It is the server that it was taken for.
    Same,
    /// It does not report its identity, and no other server has.
    Unknown,
    /// It is another one.
    Other,
    /// It is the server of this number, by another address.
    Alias(u16),
    /// It was started again.
    Restarted,
}

impl Registry {
    pub(super) fn node(&self, number: u16) -> &Arc<Node> {
        &self.nodes[usize::from(number)]
    }

    /// All of them, in the order of their numbers.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u16, &Arc<Node>)> {
        (0..).zip(&self.nodes)
    }

    /// Adds a server, and returns its number.
    pub(super) fn add(&mut self, node: Node) -> u16 {
        self.nodes.push(Arc::new(node));
        self.nodes.len() as u16 - 1
    }

    /// The server that is meant, by its identity if that is given, otherwise by its address. `members` are the
    /// identities in the same table. `None`: there are no more numbers.
    pub(super) fn find(
        &mut self,
        server: &Named,
        members: &BTreeSet<ServerId>,
        make: impl FnOnce(u16, &Named) -> Node,
    ) -> Option<Found> {
        let found = self.known(server, members);
        let mut found = match found {
            Some(found) => found,
            None if self.nodes.len() == NODES_MAX => {
                event!(DEBUG, server = %server.address, "too many servers were named");
                return None;
            }
            None => Found::same(self.add(make(self.nodes.len() as u16, server))),
        };
        if let Some(id) = &server.id {
            self.ids.insert(Arc::clone(id), found.number);
        }
        let before = self.addresses.insert(server.address.clone(), found.number);
        let is_alias =
            |before: &u16| *before != found.number && self.node(*before).endpoint.id().is_none();
        found.alias = before.filter(is_alias);
        Some(found)
    }

    fn known(&mut self, server: &Named, members: &BTreeSet<ServerId>) -> Option<Found> {
        let by_id = server.id.as_ref().and_then(|id| self.ids.get(id));
        if let Some(&number) = by_id {
            return Some(Found::same(number));
        }
        let &number = self.addresses.get(&server.address)?;
        let Some(id) = &server.id else {
            return Some(Found::same(number));
        };
        let endpoint = &self.node(number).endpoint;
        match endpoint.id() {
            None => {
                endpoint.set_id(Arc::clone(id));
                Some(Found::same(number))
            }
            // One that is elsewhere now keeps its number.
            Some(old) if members.contains(&old) || endpoint.address() != server.address => None,
            Some(old) => {
                endpoint.set_id(Arc::clone(id));
                self.ids.remove(&old);
                Some(Found {
                    replaced: true,
                    ..Found::same(number)
                })
            }
        }
    }

    /// Forgets whose address this is.
    pub(super) fn forget_address(&mut self, address: &Address) {
        self.addresses.remove(address);
    }

    /// A connection of this number leads to a server that reports this identity. In a cluster (`by_table`) only
    /// its table may say that another server has taken the place of a known one.
    pub(super) fn identified(
        &mut self,
        number: u16,
        reported: Option<&ServerId>,
        by_table: bool,
    ) -> NumberOutcome {
        let endpoint = &self.node(number).endpoint;
        let (known, address) = (endpoint.id(), endpoint.address());
        let Some(id) = reported else {
            return match known {
                Some(_) => NumberOutcome::Same,
                None => NumberOutcome::Unknown,
            };
        };
        if known.as_ref() == Some(id) {
            return NumberOutcome::Same;
        }
        if known.is_some() && by_table {
            return NumberOutcome::Other;
        }
        match self.ids.get(id) {
            // Never `number` itself, whose only entry is the identity that it is known by.
            Some(&other) => {
                self.addresses.insert(address, other);
                NumberOutcome::Alias(other)
            }
            None => {
                endpoint.set_id(Arc::clone(id));
                if let Some(old) = &known {
                    self.ids.remove(old);
                }
                self.ids.insert(Arc::clone(id), number);
                match known {
                    None => NumberOutcome::Same,
                    Some(_) => NumberOutcome::Restarted,
                }
            }
        }
    }
}
