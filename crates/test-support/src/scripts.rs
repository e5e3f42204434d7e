//! The scripts of the library, and how a proxy knows their calls.

pub const ACQUIRE: &str = include_str!("../../../lua/acquire.lua");
pub const RELEASE: &str = include_str!("../../../lua/release.lua");
pub const PASS: &str = include_str!("../../../lua/pass.lua");
pub const RENEW: &str = include_str!("../../../lua/renew.lua");
pub const FORCE_UNLOCK: &str = include_str!("../../../lua/force_unlock.lua");
pub const INSPECT: &str = include_str!("../../../lua/inspect.lua");
pub const TOUCH: &str = include_str!("../../../lua/touch.lua");

/// Whether the words call this script with this owner's target count.
pub fn is_script(words: &[String], source: &str) -> bool {
    let sha = sha1_smol::Sha1::from(source).digest().to_string();
    words[0].starts_with("EVAL")
        && words
            .get(1)
            .is_some_and(|script| *script == sha || script == source)
}

/// Matches `acquire.lua` going to this count.
pub fn acquire_to(target: u32) -> impl Fn(&[String]) -> bool + Send + 'static {
    move |words| is_script(words, ACQUIRE) && words.get(5) == Some(&target.to_string())
}

/// Matches `release.lua` going to this count.
pub fn release_to(target: u32) -> impl Fn(&[String]) -> bool + Send + 'static {
    move |words| is_script(words, RELEASE) && words.get(5) == Some(&target.to_string())
}
