//! The text of a configuration as a tree, with every scalar as it is written: a password may look like a number.

use std::collections::{BTreeMap, BTreeSet};

use granit_parser::{Event, Parser, ScalarStyle};

/// A value with its Java tag, such as `!org.redisson.codec.Kryo5Codec`.
#[derive(Clone)]
pub(super) struct ConfigNode {
    pub(super) tag: Option<String>,
    pub(super) content: Content,
}

#[derive(Clone)]
pub(super) enum Content {
    Null,
    Scalar(String),
    List(Vec<ConfigNode>),
    Map(Vec<(String, ConfigNode)>),
}

impl ConfigNode {
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn map(&self) -> Option<&[(String, Self)]> {
        match &self.content {
            Content::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The Java class of an object, as YAML or JSON has it, without its package.
    pub(super) fn class(&self) -> Option<&str> {
        let by_key = || {
            let entries = self.map()?.iter();
            let class = entries.clone().find(|(key, _)| key == "class")?;
            class.1.text()
        };
        let class = self.tag.as_deref().or_else(by_key)?;
        class.rsplit(['.', '!', ':']).next()
    }

    fn size(&self) -> usize {
        1 + match &self.content {
            Content::Null | Content::Scalar(_) => 0,
            Content::List(items) => items.iter().map(Self::size).sum(),
            Content::Map(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }

    /// Replaces `${NAME}` and `${NAME:-default}` in all values. Adds what has no value to `missing`.
    pub(super) fn substitute(
        &mut self,
        variable: &dyn Fn(&str) -> Option<String>,
        missing: &mut BTreeSet<String>,
    ) {
        match &mut self.content {
            Content::Null => {}
            Content::Scalar(text) => *text = substituted(text, variable, missing),
            Content::List(items) => {
                for item in items {
                    item.substitute(variable, missing);
                }
            }
            Content::Map(entries) => {
                for (_, node) in entries {
                    node.substitute(variable, missing);
                }
            }
        }
    }
}

fn substituted(
    text: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    missing: &mut BTreeSet<String>,
) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        done.push_str(before);
        let Some((inner, after)) = after.split_once('}') else {
            rest = &rest[before.len()..];
            break;
        };
        rest = after;
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        match (variable(name), default) {
            (Some(value), _) => done.push_str(&value),
            (None, Some(default)) => done.push_str(default),
            (None, None) => {
                missing.insert(name.to_owned());
            }
        }
    }
    done + rest
}

/// A list or map that is not complete yet.
struct Open {
    node: ConfigNode,
    anchor: usize,
    key: Option<String>,
}

/// Reads YAML, and JSON with it.
pub(super) fn parse(text: &str) -> Result<ConfigNode, String> {
    let mut builder = Builder::default();
    for next in Parser::new_from_str(text) {
        let (event, _) = next.map_err(|problem| format!("it is no YAML and no JSON: {problem}"))?;
        builder.add(event)?;
    }
    builder.root.ok_or_else(|| "it is empty".to_owned())
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, ConfigNode>,
    nodes: usize,
    root: Option<ConfigNode>,
}

impl Builder {
    fn add(&mut self, event: Event<'_>) -> Result<(), String> {
        let tag = event.tag().map(ToString::to_string);
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_null = style == ScalarStyle::Plain && ["", "~", "null"].contains(&&*text);
                let content = match is_null {
                    true => Content::Null,
                    false => Content::Scalar(text.into_owned()),
                };
                self.value(ConfigNode { tag, content }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(tag, Content::List(Vec::new()), anchor)
            }
            Event::MappingStart(_, anchor, _) => self.begin(tag, Content::Map(Vec::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.value(open.node, open.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.value(node, 0),
                None => Err("an alias refers to what contains it".to_owned()),
            },
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        tag: Option<String>,
        content: Content,
        anchor: usize,
    ) -> Result<(), String> {
        if self.open.len() == DEPTH_MAX {
            return Err("it is nested too deeply".to_owned());
        }
        let node = ConfigNode { tag, content };
        self.open.push(Open {
            node,
            anchor,
            key: None,
        });
        Ok(())
    }

    fn value(&mut self, node: ConfigNode, anchor: usize) -> Result<(), String> {
        self.nodes += node.size();
        if self.nodes > NODES_MAX {
            return Err("it has too many values".to_owned());
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            return match self.root.replace(node) {
                None => Ok(()),
                Some(_) => Err("it has several documents".to_owned()),
            };
        };
        match (&mut open.node.content, open.key.take()) {
            (Content::List(items), _) => items.push(node),
            (Content::Map(entries), Some(key)) if key == "<<" => {
                let Content::Map(merged) = node.content else {
                    return Err("`<<` merges an object".to_owned());
                };
                for (key, node) in merged {
                    if entries.iter().all(|(known, _)| *known != key) {
                        entries.push((key, node));
                    }
                }
            }
            (Content::Map(entries), Some(key)) => {
                if entries.iter().any(|(known, _)| *known == key) {
                    return Err(format!("`{key}` is there twice"));
                }
                entries.push((key, node));
            }
            (Content::Map(_), None) => match node.content {
                Content::Scalar(key) => open.key = Some(key),
                _ => return Err("a key is not a word".to_owned()),
            },
            (Content::Null | Content::Scalar(_), _) => {}
        }
        Ok(())
    }
}

/// More than any configuration has. Aliases multiply values.
const NODES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 32;
