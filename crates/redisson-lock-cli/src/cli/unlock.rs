//! `unlock`: frees a lock, no matter who holds it.

use std::time::Duration;

use super::args::Unlock;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Unlock) -> Result<u8, Problem> {
    if !arguments.force {
        let sentence = format!(
            "lock `{}` belongs to its holder, which would continue without it: add --force to free it anyway",
            arguments.name
        );
        return Err(Problem::new(exit::USAGE, sentence));
    }
    let client = connect(&arguments.server.url).await?;
    let lock = client.lock_of(arguments.kind.kind, &arguments.name);
    let freed = lock.force_unlock().await;
    client.close(Duration::ZERO).await;
    let name = text::plain(&arguments.name);
    if freed? {
        text::print(&format!("{name}: freed\n"))?;
        Ok(0)
    } else {
        text::print(&format!("{name}: it was free already\n"))?;
        Ok(exit::FREE)
    }
}
