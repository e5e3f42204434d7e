//! Where a server is reached, and which server it is.
//!
//! A server may have several addresses: seeds that name it differently, host names that change, a redirect
//! to another name. Its connections must not be taken for those of two servers, or a command that is left on
//! one would not be fenced from those on the other. So a server is known by its identity, and each new
//! connection says which server it leads to before it carries a script.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::redis::settings::Settings;
use crate::redis::settings::address::Address;

/// The identity of a server, whatever its address: the node id in a cluster, the run id elsewhere.
pub(in crate::redis) type ServerId = Arc<str>;

/// The server that a connection turns out to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum Identified {
    /// The server that it was opened for.
    Same,
    /// A server that does not say who it is: it may be known by another address as well.
    Unknown,
    /// Another one.
    Other,
}

/// Compares the identity that a server reports with what is known of all servers.
pub(in crate::redis) type Identify = Box<dyn Fn(Option<&ServerId>) -> Identified + Send + Sync>;

/// Address, settings and identity of one server. The first two may change: the next connection uses them.
pub(in crate::redis) struct Endpoint {
    known: Mutex<Known>,
    /// `None`: there is only one server, and its identity does not matter.
    identify: Option<Identify>,
}

struct Known {
    address: Address,
    settings: Arc<Settings>,
    id: Option<ServerId>,
}

impl Endpoint {
    pub(in crate::redis) fn new(
        address: Address,
        settings: Arc<Settings>,
        id: Option<ServerId>,
        identify: Option<Identify>,
    ) -> Self {
        let known = Known {
            address,
            settings,
            id,
        };
        Self {
            known: Mutex::new(known),
            identify,
        }
    }

    pub(in crate::redis) fn address(&self) -> Address {
        self.known.lock().address.clone()
    }

    pub(in crate::redis) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.known.lock().settings)
    }

    pub(in crate::redis) fn id(&self) -> Option<ServerId> {
        self.known.lock().id.clone()
    }

    pub(in crate::redis) fn set_id(&self, id: ServerId) {
        self.known.lock().id = Some(id);
    }

    /// Connects there from now on. What is connected stays so: it leads to the same server.
    pub(in crate::redis) fn set_address(
        &self,
        address: &Address,
        settings: impl FnOnce() -> Settings,
    ) {
        let mut known = self.known.lock();
        if known.address != *address {
            known.address = address.clone();
            known.settings = Arc::new(settings());
        }
    }

    /// Identifies the server of a connection by the identity that it reports.
    pub(in crate::redis) fn identify(&self, found: Option<&ServerId>) -> Identified {
        match &self.identify {
            None => Identified::Same,
            Some(identify) => identify(found),
        }
    }
}
