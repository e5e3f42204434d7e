//! The events of the clients, written to a file.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::time;
use tracing_subscriber::layer::SubscriberExt as _;

/// Writes what the clients report from here on.
pub fn write_to(path: &Path) -> Result<(), String> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let events = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false)
        .with_timer(time::uptime())
        .with_writer(Mutex::new(file))
        .finish()
        .with(filter_fn(|metadata| metadata.target() == "redisson_lock"));
    tracing::subscriber::set_global_default(events).map_err(|error| error.to_string())
}
