//! The lock's name: a format string over the function's arguments.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{Error, Expr, ExprField, FnArg, LitStr, Result, Signature};

/// The expression that makes the name.
pub(crate) fn expand(
    name: &LitStr,
    prefix: Option<&Expr>,
    signature: &Signature,
) -> Result<TokenStream> {
    let text = name.value();
    if text.is_empty() {
        return Err(Error::new(
            name.span(),
            "the name of the lock is empty: write one, such as `name = \"order:{id}\"`",
        ));
    }
    let reader = Reader {
        span: name.span(),
        arguments: arguments(signature),
    };
    let (format, shown) = reader.read(&text)?;
    let format = match prefix {
        Some(_) => format!("{{}}{format}"),
        None => format,
    };
    let format = LitStr::new(&format, name.span());
    let prefix = prefix.into_iter();
    Ok(quote_spanned! {Span::mixed_site()=>
        ::std::format!(#format #(, #prefix)* #(, #shown)*)
    })
}

/// Every word in the patterns of the arguments: more than the names that they bind, never fewer.
fn arguments(signature: &Signature) -> BTreeSet<String> {
    fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    found.insert(ident.to_string());
                }
                TokenTree::Group(group) => words(group.stream(), found),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
    let mut found = BTreeSet::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(_) => {
                found.insert("self".to_owned());
            }
            FnArg::Typed(argument) => words(argument.pat.to_token_stream(), &mut found),
        }
    }
    found.retain(|word| is_lowercase(word) && word != "mut" && word != "ref" && word != "_");
    found
}

/// Constants and types are not arguments, and left to the compiler.
fn is_lowercase(word: &str) -> bool {
    !word.starts_with(char::is_uppercase)
}

struct Reader {
    span: Span,
    arguments: BTreeSet<String>,
}

impl Reader {
    /// The text for `format!`, and what is shown in it, in order.
    fn read(&self, text: &str) -> Result<(String, Vec<Expr>)> {
        let (mut format, mut shown) = (String::new(), Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            format.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                format.push_str(brace);
                format.push_str(brace);
                rest = after;
            } else if brace == "{" {
                let (inside, after) = rest.split_once('}').ok_or_else(|| {
                    self.problem("a `{` of the name is not closed: write `}` after the argument, or `{{` for a brace")
                })?;
                let (expression, spec) = split(inside);
                shown.push(self.expression(expression)?);
                format.push_str(&self.checked(spec)?);
                rest = after;
            } else {
                return Err(self.problem("a `}` of the name has no `{`: write `}}` for a brace"));
            }
        }
        format.push_str(rest);
        Ok((format, shown))
    }

    fn expression(&self, text: &str) -> Result<Expr> {
        let wrong = || {
            self.problem(&format!(
                "`{{{text}}}` is not an argument or one of its fields: write `{{id}}` or `{{order.id}}`, and compute \
                 anything else before the call"
            ))
        };
        let tokens: TokenStream = text.parse().map_err(|_| wrong())?;
        let expression: Expr = syn::parse2(self.respanned(tokens)).map_err(|_| wrong())?;
        let Some(root) = root(&expression) else {
            return Err(wrong());
        };
        if let Some(word) = root.get_ident() {
            self.known(word)?;
        }
        Ok(expression)
    }

    fn known(&self, word: &Ident) -> Result<()> {
        let name = word.to_string();
        if !is_lowercase(&name) || self.arguments.contains(&name) {
            return Ok(());
        }
        let arguments: Vec<String> = self
            .arguments
            .iter()
            .map(|name| format!("`{{{name}}}`"))
            .collect();
        let advice = if arguments.is_empty() {
            "it has none, so write the name without braces".to_owned()
        } else {
            format!("write {}", arguments.join(" or "))
        };
        Err(self.problem(&format!(
            "`{name}` is not an argument of this function: {advice}"
        )))
    }

    /// The part of the placeholder that says how, with its braces. Widths by name would need
    /// arguments of their own.
    fn checked(&self, spec: &str) -> Result<String> {
        if spec.contains(['$', '*', '{']) {
            let problem = format!(
                "`{spec}` takes a width or a precision from an argument: write it as a number"
            );
            return Err(self.problem(&problem));
        }
        Ok(format!("{{{spec}}}"))
    }

    /// Errors of the compiler point at the name: stable Rust has no span for a part of a literal.
    ///
    /// Where a field has a similar name, the compiler suggests to write that in the place of the span, which is the
    /// whole literal. It suggests nothing if the span comes from a macro. The same holds for associated constants,
    /// not for constants of a module. The first word keeps the literal's own span: a literal that a macro was given
    /// names arguments that the macro was given with it.
    fn respanned(&self, tokens: TokenStream) -> TokenStream {
        let of_a_macro = Span::call_site().located_at(self.span);
        let spans = std::iter::once(self.span).chain(std::iter::repeat(of_a_macro));
        tokens
            .into_iter()
            .zip(spans)
            .map(|(mut token, span)| {
                token.set_span(span);
                token
            })
            .collect()
    }

    fn problem(&self, text: &str) -> Error {
        Error::new(self.span, text)
    }
}

/// `order.id:>8` is an expression and a format; the two colons of a path are no border.
fn split(inside: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(at) = inside[from..].find(':').map(|at| from + at) {
        if !inside[at + 1..].starts_with(':') {
            return inside.split_at(at);
        }
        from = at + 2;
    }
    (inside, "")
}

/// What the fields are of, if there is nothing but fields.
fn root(expression: &Expr) -> Option<&syn::Path> {
    match expression {
        Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => Some(&path.path),
        Expr::Field(ExprField { base, attrs, .. }) if attrs.is_empty() => root(base),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn reader() -> Reader {
        let signature: Signature = syn::parse2(quote! {
            async fn pay(&self, Json(order): Json<Order>, mut id: u64, pair: (u8, u8)) -> Result<(), Error>
        })
        .expect("a signature");
        Reader {
            span: Span::call_site(),
            arguments: arguments(&signature),
        }
    }

    #[test]
    fn arguments_are_found_in_patterns() {
        let found: Vec<String> = reader().arguments.into_iter().collect();
        assert_eq!(found, ["id", "order", "pair", "self"]);
    }

    #[test]
    fn names_become_formats() {
        for (text, format, shown) in [
            ("stock", "stock", &[][..]),
            ("a:{id}:b", "a:{}:b", &["id"]),
            ("{order.id}{id}", "{}{}", &["order . id", "id"]),
            ("{self.shop.0}", "{}", &["self . shop . 0"]),
            ("{pair.0}-{pair.1}", "{}-{}", &["pair . 0", "pair . 1"]),
            ("{id:>08}", "{:>08}", &["id"]),
            ("{Self::KIND:?}", "{:?}", &["Self :: KIND"]),
            ("{kinds::A}", "{}", &["kinds :: A"]),
            ("{{{id}}}", "{{{}}}", &["id"]),
            ("ü{id}ü", "ü{}ü", &["id"]),
        ] {
            let (made, expressions) = reader().read(text).expect("it is right");
            assert_eq!(made, format, "{text}");
            let expressions: Vec<String> = expressions
                .iter()
                .map(|expression| expression.to_token_stream().to_string())
                .collect();
            assert_eq!(expressions, shown, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("{", "not closed"),
            ("{id", "not closed"),
            ("id}", "`}}` for a brace"),
            ("{}", "not an argument or one of its fields"),
            ("{0}", "not an argument or one of its fields"),
            ("{id()}", "not an argument or one of its fields"),
            ("{order.id()}", "not an argument or one of its fields"),
            ("{order.}", "not an argument or one of its fields"),
            ("{id + 1}", "not an argument or one of its fields"),
            ("{(id)}", "not an argument or one of its fields"),
            ("{id:width$}", "write it as a number"),
            (
                "{oder.id}",
                "write `{id}` or `{order}` or `{pair}` or `{self}`",
            ),
        ] {
            let said = match reader().read(text) {
                Ok(_) => panic!("{text} was accepted"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(problem), "{text}: {said}");
        }
    }
}
