//! The result as a picture that can be read on a light and on a dark page.

use std::fmt::Write as _;

use crate::{Row, STOCK};

/// Writes a bar for each strategy: what was sold of the stock, what beyond it, and how long nothing was sold after the
/// kill.
pub fn draw(rows: &[Row]) -> String {
    let height = TOP + ROW * rows.len() as i64 + 16;
    let most = rows
        .iter()
        .map(|row| row.sold)
        .max()
        .unwrap_or(0)
        .max(STOCK);
    let across = |items: i64| items * BARS_WIDTH / most;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" {FONT}>\n<title>A stock of {STOCK}, sold with eight locking strategies</title>\n{STYLE}\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    let bars_end = BARS + BARS_WIDTH;
    for (x, anchor, head) in [
        (BARS, "start", "sold, and sold beyond the stock of 1,000"),
        (bars_end + 190, "end", "foreign deletes"),
        (bars_end + 290, "end", "stuck for"),
    ] {
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{x}\" y=\"30\" text-anchor=\"{anchor}\">{head}</text>"
        );
    }
    for (nth, row) in rows.iter().enumerate() {
        let y = TOP + ROW * nth as i64;
        let text = y + 17;
        let (exact, beyond) = (across(row.sold.min(STOCK)), across(row.oversold()));
        let (title, stuck) = (escaped(row.way.title()), escaped(&row.stuck_for()));
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"24\" y=\"{text}\">{title}</text>\n\
             <rect class=\"sold\" x=\"{BARS}\" y=\"{y}\" width=\"{exact}\" height=\"22\"/>\n\
             <rect class=\"over\" x=\"{}\" y=\"{y}\" width=\"{beyond}\" height=\"22\"/>",
            BARS + exact
        );
        let said = match row.oversold() {
            0 => row.sold.to_string(),
            over => format!("{over} too many"),
        };
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"{}\" y=\"{text}\">{said}</text>\n\
             <text class=\"{}\" x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\n\
             <text class=\"{}\" x=\"{}\" y=\"{text}\" text-anchor=\"end\">{stuck}</text>",
            BARS + exact + beyond + 8,
            if row.foreign > 0 { "bad" } else { "ink" },
            bars_end + 190,
            row.foreign,
            if row.stuck.is_none() { "bad" } else { "ink" },
            bars_end + 290,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

const WIDTH: i64 = 1000;
const TOP: i64 = 46;
const ROW: i64 = 30;
/// Where the bars begin, and how long the longest is.
const BARS: i64 = 310;
const BARS_WIDTH: i64 = 370;

const FONT: &str = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"14\"";

const STYLE: &str = "\
<style>
.paper { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e } .sold { fill: #0072b2 } .over { fill: #d55e00 }
.bad { fill: #b34700; font-weight: 600 }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .sold { fill: #3d9bd8 } .over { fill: #e8772e }
.bad { fill: #ff9e57 }
}
</style>
";
