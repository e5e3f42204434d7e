//! `unlock`: frees a lock, no matter who holds it.

use std::time::Duration;

use super::args::Unlock;
use super::exit::{self, Problem};
use super::{connect, text};

pub(crate) async fn run(arguments: &Unlock) -> Result<u8, Problem> {
    let name = text::plain(&arguments.name);
    if !arguments.force {
        let sentence = format!(
            "lock `{name}` belongs to its holder, which would go on without it: say --force if that is meant"
        );
        return Err(Problem::new(exit::USAGE, sentence));
    }
    let client = connect(&arguments.server.url).await?;
    let freed = client.lock(&arguments.name).force_unlock().await;
    client.close(Duration::ZERO).await;
    if freed? {
        text::print(&format!("{name}: freed\n"));
        Ok(0)
    } else {
        text::print(&format!("{name}: it was free already\n"));
        Ok(exit::FREE)
    }
}
