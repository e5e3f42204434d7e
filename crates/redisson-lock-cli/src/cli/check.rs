//! `check`: which permissions are missing.

use std::time::Duration;

use super::args::Check;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Check) -> Result<u8, Problem> {
    let client = connect(&arguments.server.url).await?;
    let missing = client
        .lock_of(arguments.kind.kind, &arguments.name)
        .check()
        .await;
    client.close(Duration::ZERO).await;
    let missing = missing?;
    let name = text::plain(&arguments.name);
    if missing.is_empty() {
        text::print(&format!("{name}: all permissions granted\n"))?;
        return Ok(0);
    }
    // As `ACL SETUSER` takes them.
    text::print(&format!(
        "{name}: missing {}\n",
        text::plain(&missing.join(" "))
    ))?;
    Ok(exit::NOT_PERMITTED)
}
