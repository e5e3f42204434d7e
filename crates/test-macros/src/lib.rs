//! The attributes `#[test]` and `#[tokio::test]` with a time limit. `test-support` re-exports them under the
//! names that they stand in for.

use proc_macro::TokenStream;
use quote::{ToTokens, quote};
use syn::{ItemFn, parse_macro_input, parse_quote};

/// `#[test]`, for a test that may run for a minute.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let function = limited(parse_macro_input!(function as ItemFn));
    quote!(#[::core::prelude::v1::test] #function).into()
}

/// The same for `#[tokio::test]`, with its settings.
#[proc_macro_attribute]
pub fn tokio_test(settings: TokenStream, function: TokenStream) -> TokenStream {
    let settings = proc_macro2::TokenStream::from(settings);
    let function = limited(parse_macro_input!(function as ItemFn));
    quote!(#[::tokio::test(#settings)] #function).into()
}

/// The test, which says its name before anything else.
fn limited(mut function: ItemFn) -> impl ToTokens {
    let name = function.sig.ident.to_string();
    let begins = parse_quote! {
        ::test_support::begins(::core::concat!(::core::module_path!(), "::", #name));
    };
    function.block.stmts.insert(0, begins);
    function
}
