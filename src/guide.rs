//! The pages of `docs/`: what is promised, how it is built, operated, tested and measured.
//!
//! For users: [`guarantees`], [`operations`], [`migrating`], [`interop`], [`benchmarks`], [`changelog`].
//! For those who look inside: [`architecture`], [`protocol`], [`testing`].
//!
//! This module exists in the documentation only.

/// Pages as modules. In the files a link leads to another file; here it leads to a module, because the first
/// definition of a link counts.
macro_rules! pages {
    ($($module:ident = $file:literal;)*) => {
        $(
            #[doc = "[architecture.md]: crate::guide::architecture"]
            #[doc = "[guarantees.md]: crate::guide::guarantees"]
            #[doc = "[guarantees.md#replies-out-of-step]: crate::guide::guarantees#replies-out-of-step"]
            #[doc = "[guarantees.md#readers-beside-readers-in-java]: crate::guide::guarantees#readers-beside-readers-in-java"]
            #[doc = "[interop.md]: crate::guide::interop"]
            #[doc = "[operations.md#tls]: crate::guide::operations#tls"]
            #[doc = "[protocol.md#differences-in-how-a-state-is-reached]: crate::guide::protocol#differences-in-how-a-state-is-reached"]
            #[doc = "[protocol.md#announcing-a-release]: crate::guide::protocol#announcing-a-release"]
            #[doc = "[protocol.md#fair-locks]: crate::guide::protocol#fair-locks"]
            #[doc = "[protocol.md#other-kinds]: crate::guide::protocol#other-kinds"]
            #[doc = "[protocol.md#read-write-locks]: crate::guide::protocol#read-write-locks"]
            #[doc = "[protocol.md#reports-of-changes]: crate::guide::protocol#reports-of-changes"]
            #[doc = "[protocol.md#several-locks]: crate::guide::protocol#several-locks"]
            #[doc = "[testing.md#planted-bugs]: crate::guide::testing#planted-bugs"]
            #[doc = "[testing.md#the-explorer]: crate::guide::testing#the-explorer"]
            #[doc = "[testing.md#the-parts]: crate::guide::testing#the-parts"]
            #[doc = ""]
            #[doc = include_str!(concat!("../docs/", $file))]
            pub mod $module {}
        )*
    };
}

pages! {
    architecture = "architecture.md";
    guarantees = "guarantees.md";
    interop = "interop.md";
    migrating = "migrating.md";
    operations = "operations.md";
    protocol = "protocol.md";
    testing = "testing.md";
}

/// A page with pictures, which the documentation has no files for: they stand behind its text, and where the text
/// shows them is a picture of one invisible pixel.
macro_rules! page_with_plots {
    ($module:ident = $file:literal, $($plot:literal),*) => {
        #[doc = concat!($("[benchmarks/", $plot, ".svg]: data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=\n"),*)]
        #[doc = include_str!(concat!("../docs/", $file))]
        $(
            #[doc = concat!("<div>", include_str!(concat!("../docs/benchmarks/", $plot, ".svg")), "</div>\n")]
        )*
        pub mod $module {}
    };
}

page_with_plots! {
    benchmarks = "benchmarks.md",
    "solo", "handoff", "tasks", "waiters", "held-cpu", "held-memory"
}

#[doc = include_str!("../CHANGELOG.md")]
pub mod changelog {}
