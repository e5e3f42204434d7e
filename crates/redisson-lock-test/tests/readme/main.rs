//! The tests of the README as they are pasted: the first by itself, and all of them in one file.

use test_support::test;

mod alone;
#[allow(dead_code, reason = "the README shows how a service connects")]
mod together;

/// What a file has below its head.
fn pasted(file: &str) -> &str {
    file.split_once("\n\n").expect("a head").1
}

#[test]
fn the_readme_shows_these_tests_and_nothing_else_is_needed_to_compile_them() {
    let blocks: Vec<&str> = include_str!("../../README.md")
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(blocks.len(), 5);
    assert_eq!(pasted(include_str!("alone.rs")), blocks[0]);
    assert_eq!(pasted(include_str!("together.rs")), blocks.join("\n"));
}
