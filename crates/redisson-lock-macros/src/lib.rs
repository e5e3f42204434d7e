//! The attribute `#[locked]` of [`redisson-lock`](https://docs.rs/redisson-lock), which re-exports it
//! with its feature `macros`. Depend on that crate, not on this one.

mod duration;
mod expand;
mod name;
mod options;

use proc_macro::TokenStream;

/// Takes a lock around an async function: its body runs with the lock held.
///
/// [Options, results and examples](https://docs.rs/redisson-lock/latest/redisson_lock/attr.locked.html) are where
/// `redisson-lock` re-exports it.
#[proc_macro_attribute]
pub fn locked(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(options.into(), function.into()).into()
}
