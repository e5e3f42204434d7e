//! What a user may do: rules of `ACL SETUSER`, and what Redis 7.0 answers without a right.

/// The rights of a user. At first, all of them.
#[derive(Debug, Clone, Default)]
pub struct Rights {
    /// The last rule that matches a command counts.
    commands: Vec<(String, bool)>,
    /// Patterns; `None` permits every channel.
    channels: Option<Vec<String>>,
}

impl Rights {
    /// Applies one rule. `None`: it is none that is known here.
    pub(super) fn apply(&mut self, rule: &str) -> Option<()> {
        match rule {
            "allchannels" => self.channels = None,
            "resetchannels" => self.channels = Some(Vec::new()),
            _ => {
                if let Some(pattern) = rule.strip_prefix('&') {
                    // As in Redis, it adds nothing to all channels.
                    if let Some(channels) = &mut self.channels {
                        channels.push(pattern.to_owned());
                    }
                } else {
                    let is_granted = rule.starts_with('+');
                    let command = rule.strip_prefix(['+', '-'])?;
                    let is_category = command.starts_with('@') && command != "@all";
                    if command.is_empty() || is_category {
                        return None;
                    }
                    self.commands
                        .push((command.to_ascii_lowercase(), is_granted));
                }
            }
        }
        Some(())
    }

    /// Whether a command may be called. A command with a subcommand is written `client|kill`.
    pub(super) fn may_call(&self, command: &str) -> bool {
        let is_meant = |rule: &str| {
            let rest = command.strip_prefix(rule);
            rule == "@all" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        let last = self.commands.iter().rfind(|(rule, _)| is_meant(rule));
        last.is_none_or(|&(_, is_granted)| is_granted)
    }

    /// Whether a channel may be subscribed to, and published to.
    pub(super) fn may_use(&self, channel: &str) -> bool {
        let is_meant = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => channel.starts_with(start),
            None => channel == pattern,
        };
        self.channels
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(is_meant))
    }
}

/// What a command that is not permitted is answered.
pub(super) fn no_command(command: &str) -> String {
    format!("NOPERM this user has no permissions to run the '{command}' command")
}

pub(super) fn no_channel() -> String {
    "NOPERM this user has no permissions to access one of the channels used as arguments".to_owned()
}

/// The same inside a script.
pub(super) fn no_command_of_script() -> String {
    "ERR The user executing the script can't run this command or subcommand".to_owned()
}

pub(super) fn no_channel_of_script() -> String {
    "ERR The user executing the script can't publish to the channel mentioned in the command"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use test_support::test;

    use super::*;

    fn rights(rules: &str) -> Rights {
        let mut rights = Rights::default();
        for rule in rules.split(' ').filter(|rule| !rule.is_empty()) {
            rights.apply(rule).expect("a rule that is known");
        }
        rights
    }

    #[test]
    fn the_last_rule_of_a_command_counts() {
        for (rules, command, may) in [
            ("", "publish", true),
            ("-publish", "publish", false),
            ("-PUBLISH", "publish", false),
            ("-publish +publish", "publish", true),
            ("-client", "client|kill", false),
            ("-client +client|kill", "client|kill", true),
            ("-client +client|kill", "client|info", false),
            ("-client|kill", "client|info", true),
            ("-eval", "evalsha", true),
            ("-@all +evalsha", "evalsha", true),
            ("-@all +evalsha", "eval", false),
        ] {
            assert_eq!(rights(rules).may_call(command), may, "{rules}: {command}");
        }
    }

    #[test]
    fn channels_are_all_or_those_that_are_named() {
        for (rules, channel, may) in [
            ("", "a", true),
            ("&b", "a", true),
            ("resetchannels", "a", false),
            ("resetchannels &a", "a", true),
            ("resetchannels &a", "ab", false),
            ("resetchannels &a*", "ab", true),
            ("resetchannels &b &a", "a", true),
            ("resetchannels allchannels", "a", true),
        ] {
            assert_eq!(rights(rules).may_use(channel), may, "{rules}: {channel}");
        }
    }

    #[test]
    fn unknown_rules_are_refused() {
        for rule in ["publish", "~*", "-@dangerous", "on", "+"] {
            assert!(Rights::default().apply(rule).is_none(), "{rule}");
        }
    }
}
