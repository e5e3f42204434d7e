//! The function with its lock.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Error, Item, ItemFn, Result, ReturnType, Type, TypeInfer, parse_quote};

use crate::name;
use crate::options::Options;

pub(crate) fn expand(options: TokenStream, function: TokenStream) -> TokenStream {
    with_lock(options, function.clone()).unwrap_or_else(|error| {
        // The function itself stays, or each of its callers would be one more error. What only the
        // attribute uses is not worth a warning then.
        let error = error.to_compile_error();
        quote!(#error #[allow(unused)] #function)
    })
}

fn with_lock(options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let mut function: ItemFn = syn::parse2(function.clone()).map_err(|error| {
        // Any other item, or a function without a body. What is none at all is a mistake in the body.
        if syn::parse2::<Item>(function).is_err() {
            return error;
        }
        let problem =
            "`#[locked]` stands before an async function or method: write `async fn name(…) -> Result<…> { … }`";
        Error::new(error.span(), problem)
    })?;
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new(
            signature.fn_token.span,
            "`#[locked]` waits for its lock, so the function must be async: write `async fn`",
        ));
    }
    let ReturnType::Type(_, returned) = &signature.output else {
        return Err(Error::new(
            signature.ident.span(),
            "`#[locked]` can fail, so the function must return a `Result`: write `-> Result<(), redisson_lock::Error>`, or \
             an error type `E` with `E: From<redisson_lock::Error>`",
        ));
    };
    let options = Options::parse(options)?;
    let name = name::expand(&options.name, options.prefix.as_ref(), signature)?;
    let body = body(&options, &name, returned, &function.block);
    *function.block = parse_quote!({ #body });
    Ok(function.into_token_stream())
}

fn body(options: &Options, name: &TokenStream, returned: &Type, block: &syn::Block) -> TokenStream {
    let hidden = Span::mixed_site();
    let lease = duration(options.lease);
    let wait = duration(options.wait);
    let retry_for = duration(options.retry_for);
    let kind = match &options.kind {
        Some(kind) => quote!(::core::option::Option::Some(#kind)),
        None => quote!(::core::option::Option::None),
    };
    let client = match &options.client {
        Some(client) => {
            // An expression of another type is an error of this argument, and is shown there.
            let borrowed = quote_spanned!(client.span()=> &(#client));
            quote_spanned! {hidden=>
                ::core::result::Result::Ok(::redisson_lock::LockClient::clone(#borrowed))
            }
        }
        None => quote_spanned!(hidden=> ::redisson_lock::macro_support::default_client()),
    };
    let run = if options.skips {
        Ident::new("run_or_skip", returned.span())
    } else {
        Ident::new("run", returned.span())
    };
    let at_type = returned.span();
    let mut returned = returned.clone();
    Opaque.visit_type_mut(&mut returned);
    // Not the block itself: the compiler would find its braces unnecessary.
    let statements = &block.stmts;
    let body = quote_spanned! {hidden=>
        move || async move {
            // Never runs: it tells the compiler the type that `?` converts errors into.
            #[allow(unreachable_code, clippy::all)]
            if false {
                let returned: #returned = loop {};
                return returned;
            }
            #(#statements)*
        }
    };
    let (client_name, options_name) = (Ident::new("client", hidden), Ident::new("options", hidden));
    // A type that is no `Result` is an error of this call, and is shown at the type.
    let call = quote_spanned! {at_type=>
        ::redisson_lock::macro_support::#run(#client_name, #options_name, #body).await
    };
    quote_spanned! {hidden=>
        let #client_name = #client;
        let #options_name = ::redisson_lock::macro_support::Options {
            name: #name,
            lease: #lease,
            wait: #wait,
            kind: #kind,
            retry_for: #retry_for,
        };
        #call
    }
}

fn duration(given: Option<Duration>) -> TokenStream {
    match given {
        Some(given) => {
            // Parsed from milliseconds in a `u64`.
            let millis = u64::try_from(given.as_millis()).unwrap_or(u64::MAX);
            quote_spanned! {Span::mixed_site()=>
                ::core::option::Option::Some(::core::time::Duration::from_millis(#millis))
            }
        }
        None => quote_spanned!(Span::mixed_site()=> ::core::option::Option::None),
    }
}

/// `impl Trait` cannot be the type of a variable; the compiler finds it without help.
struct Opaque;

impl VisitMut for Opaque {
    fn visit_type_mut(&mut self, visited: &mut Type) {
        if let Type::ImplTrait(_) = visited {
            *visited = Type::Infer(TypeInfer {
                underscore_token: Default::default(),
            });
        } else {
            syn::visit_mut::visit_type_mut(self, visited);
        }
    }
}
