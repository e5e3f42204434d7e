//! What stands in the parentheses of the attribute.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitStr, Result, Token};

use crate::duration;

pub(crate) struct Options {
    pub(crate) name: LitStr,
    pub(crate) kind: Option<LitStr>,
    pub(crate) prefix: Option<Expr>,
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) retry_for: Option<Duration>,
    pub(crate) skips: bool,
    pub(crate) client: Option<Expr>,
}

/// One `key = value`.
struct Given {
    key: Ident,
    value: Expr,
}

impl Parse for Given {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let start = input.fork();
        let (Ok(key), Ok(_)) = (Ident::parse_any(input), input.parse::<Token![=]>()) else {
            return Err(start.error(
                "an option is written `key = value`, such as `#[locked(name = \"order:{id}\", wait = \"5s\")]`",
            ));
        };
        let value = input.parse()?;
        Ok(Self { key, value })
    }
}

impl Options {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let given = Punctuated::<Given, Token![,]>::parse_terminated.parse2(tokens)?;
        let (mut name, mut kind) = (None, None);
        let (mut prefix, mut client) = (None, None);
        let (mut wait, mut lease, mut busy) = (None, None, None);
        let mut retry_for = None;
        for Given { key, value } in given {
            let option = key.to_string();
            let is_new = match option.as_str() {
                "name" => name.replace(text(&option, value)?).is_none(),
                "kind" => kind.replace(text(&option, value)?).is_none(),
                "prefix" => prefix.replace(value).is_none(),
                "client" => client.replace(value).is_none(),
                "wait" => {
                    let text = text(&option, value)?;
                    wait.replace(duration::parse(&option, &text)?).is_none()
                }
                "lease" => {
                    let text = text(&option, value)?;
                    lease
                        .replace(duration::parse_lease(&option, &text)?)
                        .is_none()
                }
                "retry_for" => {
                    let text = text(&option, value)?;
                    let given = duration::parse(&option, &text)?;
                    retry_for.replace((key.span(), given)).is_none()
                }
                "busy" => {
                    let skips = skips(&text(&option, value)?)?;
                    busy.replace((key.span(), skips)).is_none()
                }
                _ => return Err(unknown(&key)),
            };
            if !is_new {
                let problem = format!("`{option}` is given twice: write it once");
                return Err(Error::new(key.span(), problem));
            }
        }
        let name = name.ok_or_else(|| {
            Error::new(
                Span::call_site(),
                "the lock has no name: write `#[locked(name = \"order:{id}\")]`, with arguments of the function in braces",
            )
        })?;
        if let (Some((span, _)), None) = (busy, wait) {
            return Err(Error::new(
                span,
                "`busy` says what to do when the lock is not free in time: write how long to wait too, such as \
                 `wait = \"5s\"`, or `wait = \"0s\"` for one attempt",
            ));
        }
        if let (Some((span, _)), Some(_)) = (retry_for, wait) {
            return Err(Error::new(
                span,
                "with `wait` an attempt that Redis does not answer is repeated until then: write one of `wait` and `retry_for`",
            ));
        }
        Ok(Self {
            name,
            kind: kind.map(known).transpose()?,
            prefix,
            wait,
            lease,
            retry_for: retry_for.map(|(_, given)| given),
            skips: busy.is_some_and(|(_, skips)| skips),
            client,
        })
    }
}

/// A kind of lock that there is.
fn known(kind: LitStr) -> Result<LitStr> {
    const KINDS: [&str; 7] = ["plain", "fenced", "spin", "string", "fair", "read", "write"];
    match KINDS.contains(&kind.value().as_str()) {
        true => Ok(kind),
        false => {
            let problem = format!(
                "there is no such kind of lock: write one of {}",
                KINDS.join(", ")
            );
            Err(Error::new(kind.span(), problem))
        }
    }
}

/// The value of an option that is text.
fn text(option: &str, value: Expr) -> Result<LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(text),
        // What `macro_rules!` puts in for `$name:literal`.
        Expr::Group(group) => text(option, *group.expr),
        other => {
            let example = match option {
                "name" => "order:{id}",
                "busy" => "skip",
                _ => "5s",
            };
            let problem = format!("`{option}` is text in quotes: write `{option} = \"{example}\"`");
            Err(Error::new_spanned(other, problem))
        }
    }
}

fn skips(text: &LitStr) -> Result<bool> {
    match text.value().as_str() {
        "error" => Ok(false),
        "skip" => Ok(true),
        other => {
            let problem = format!(
                "`busy` cannot be `{other}`: write `busy = \"error\"` to get `Error::Busy` when the lock is not free in \
                 time, or `busy = \"skip\"` to get `Ok(None)`"
            );
            Err(Error::new(text.span(), problem))
        }
    }
}

fn unknown(key: &Ident) -> Error {
    let problem = format!(
        "`{key}` is not an option of `#[locked]`: write one of `name`, `kind`, `prefix`, `wait`, `lease`, `retry_for`, `busy` and `client`"
    );
    Error::new(key.span(), problem)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn refused(tokens: TokenStream) -> String {
        match Options::parse(tokens) {
            Ok(_) => panic!("it was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn all_options_are_read() {
        let options = Options::parse(quote! {
            name = "order:{id}", prefix = PREFIX, wait = "5s", lease = "10s", busy = "skip", client = self.locks,
        })
        .expect("they are right");
        assert_eq!(options.name.value(), "order:{id}");
        assert_eq!(options.wait, Some(Duration::from_secs(5)));
        assert_eq!(options.lease, Some(Duration::from_secs(10)));
        assert!(options.skips && options.prefix.is_some() && options.client.is_some());
    }

    #[test]
    fn only_the_name_is_needed() {
        let options = Options::parse(quote!(name = "a")).expect("it is right");
        assert!(options.wait.is_none() && options.lease.is_none() && !options.skips);
        assert!(options.prefix.is_none() && options.client.is_none());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (tokens, problem) in [
            (quote!(), "has no name"),
            (quote!("a"), "`key = value`"),
            (quote!(name), "`key = value`"),
            (quote!(name = a), "text in quotes"),
            (quote!(name = "a", wait = 5), "text in quotes"),
            (quote!(name = "a", name = "b"), "given twice"),
            (quote!(name = "a", timeout = "5s"), "not an option"),
            (
                quote!(name = "a", wait = "5s", busy = "wait"),
                "`busy` cannot be `wait`",
            ),
            (
                quote!(name = "a", busy = "skip"),
                "`wait = \"0s\"` for one attempt",
            ),
        ] {
            let text = tokens.to_string();
            let said = refused(tokens);
            assert!(said.contains(problem), "{text}: {said}");
        }
    }
}
