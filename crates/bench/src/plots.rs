//! The plots of `docs/benchmarks/`. They bring their own background, and have other colours on a dark page.

use std::error::Error;
use std::path::Path;

use plotters::coord::combinators::WithKeyPoints;
use plotters::prelude::*;

use crate::results::{Outcome, number};
use crate::sample::{self, quantile};
use crate::sweeps::{self, Sweep};

/// A plot with lines of several systems.
struct Plot<'a> {
    file: &'a str,
    title: &'a str,
    across: &'a str,
    upwards: &'a str,
    /// Whether the upward axis is a share of one.
    is_share: bool,
    lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Draws all plots for which there are figures; returns their files and titles.
pub fn draw(
    folder: &Path,
    outcomes: &[Outcome],
    sweeps: &[Sweep],
) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let mut drawn = Vec::new();
    for plot in distributions(outcomes).into_iter().chain(lines(sweeps)) {
        let file = folder.join(plot.file);
        plot.draw(&file)?;
        std::fs::write(&file, with_dark_colours(&std::fs::read_to_string(&file)?))?;
        drawn.push((plot.file.to_owned(), plot.title.to_owned()));
    }
    Ok(drawn)
}

fn distributions(outcomes: &[Outcome]) -> Vec<Plot<'static>> {
    let plot = |scenario, file, title| {
        let outcome = outcomes.iter().find(|one| one.scenario.name == scenario)?;
        let lines = outcome
            .rows
            .iter()
            .map(|row| (row.system, slower_than(&row.nanos())))
            .collect();
        Some(Plot {
            file,
            title,
            across: "µs",
            upwards: "share of calls that took longer",
            is_share: true,
            lines,
        })
    };
    let plots = [
        plot(
            "solo",
            "solo.svg",
            "One task, one lock: how long a pair of lock and unlock takes",
        ),
        plot(
            "handoff",
            "handoff.svg",
            "From unlock in one client to lock in another",
        ),
    ];
    plots.into_iter().flatten().collect()
}

/// At each latency, the share of all that took longer, down to one in a thousand.
fn slower_than(nanos: &[u64]) -> Vec<(f64, f64)> {
    let shares = (0..=150).map(|step| 10f64.powf(-f64::from(step) / 50.0));
    shares
        .filter(|share| share * nanos.len() as f64 >= 1.0)
        .map(|share| (quantile(nanos, 1.0 - share) as f64 / 1e3, share))
        .filter(|(micros, _)| *micros > 0.0)
        .collect()
}

/// A sweep, its figure, the file, its title, the axes, and the figure's unit.
type Lines = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    [&'static str; 2],
    f64,
);

const LINES: [Lines; 4] = [
    (
        sweeps::TASKS,
        sample::PER_SECOND,
        "tasks.svg",
        "Throughput by number of tasks, one lock each",
        ["tasks", "lock and unlock per second"],
        1.0,
    ),
    (
        sweeps::WAITERS,
        sample::PER_SECOND,
        "waiters.svg",
        "Draining the waiters of one lock",
        ["waiters", "acquisitions per second"],
        1.0,
    ),
    (
        sweeps::HELD,
        sample::CPU,
        "held-cpu.svg",
        "Processor time of a client that only holds locks",
        ["held locks", "ms of CPU per second"],
        1.0,
    ),
    (
        sweeps::HELD,
        sample::HEAP,
        "held-memory.svg",
        "Live heap of all held locks together",
        ["held locks", "KiB"],
        1024.0,
    ),
];

fn lines(sweeps: &[Sweep]) -> Vec<Plot<'static>> {
    let plot = |(name, figure, file, title, [across, upwards], unit): Lines| {
        let sweep = sweeps.iter().find(|sweep| sweep.name == name)?;
        let scaled = |(size, value): (f64, f64)| (size, value / unit);
        let lines = sweep
            .systems()
            .into_iter()
            .map(|system| {
                let line = sweep.line(system, figure).into_iter().map(scaled);
                // A logarithm needs something to measure: less than a tick, or than the noise of
                // the heap, is left out.
                (system, line.filter(|(_, value)| *value > 0.0).collect())
            })
            .collect();
        Some(Plot {
            file,
            title,
            across,
            upwards,
            is_share: false,
            lines,
        })
    };
    LINES.into_iter().filter_map(plot).collect()
}

impl Plot<'_> {
    fn draw(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let points = || self.lines.iter().flat_map(|(_, line)| line.iter().copied());
        let (across, upwards) = (
            axis(points().map(|point| point.0)),
            axis(points().map(|point| point.1)),
        );
        let height = HEIGHT + LEGEND_ROW * self.lines.len().div_ceil(2) as u32 + 10;
        let root = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(HEIGHT);
        self.legend(&below)?;
        let mut chart = ChartBuilder::on(&above)
            .caption(self.title, ("sans-serif", 24).into_font().color(&INK))
            .margin(16)
            // Half of the last label.
            .margin_right(40)
            .x_label_area_size(48)
            .y_label_area_size(86)
            .build_cartesian_2d(across, upwards)?;
        let upward_label = |value: &f64| {
            if self.is_share {
                format!("{} %", value * 100.0)
            } else {
                number(*value, usize::from(*value < 1.0) * 2)
            }
        };
        chart
            .configure_mesh()
            .x_desc(self.across)
            .y_desc(self.upwards)
            .x_label_formatter(&|value| number(*value, 0))
            .y_label_formatter(&upward_label)
            .label_style(("sans-serif", 16).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 17).into_font().color(&INK))
            .bold_line_style(INK.mix(0.25))
            .light_line_style(INK.mix(0.08))
            .axis_style(INK)
            .draw()?;
        for (system, line) in &self.lines {
            let colour = colour(system);
            chart.draw_series(LineSeries::new(
                line.iter().copied(),
                colour.stroke_width(2),
            ))?;
            if !self.is_share {
                let dots = line
                    .iter()
                    .map(|point| Circle::new(*point, 3, colour.filled()));
                chart.draw_series(dots)?;
            }
        }
        root.present()?;
        Ok(())
    }

    /// The names of the lines, in two columns below the plot, where they hide nothing.
    fn legend(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let font = ("sans-serif", 16).into_font().color(&INK);
        for (number, (system, _)) in self.lines.iter().enumerate() {
            let x = 40 + (number % 2) as i32 * (WIDTH / 2) as i32;
            let y = 10 + (number / 2) as i32 * LEGEND_ROW as i32;
            let line = [(x, y), (x + 26, y)];
            area.draw(&PathElement::new(line, colour(system).stroke_width(3)))?;
            area.draw(&Text::new(*system, (x + 36, y - 7), font.clone()))?;
        }
        Ok(())
    }
}

/// A style is stronger than an attribute, so each colour of the plot has its counterpart.
fn with_dark_colours(svg: &str) -> String {
    let (head, rest) = svg.split_once('\n').unwrap_or(("", svg));
    let mut style = String::from("<style>\n@media (prefers-color-scheme: dark) {\n");
    for (light, dark) in DARK {
        for part in ["fill", "stroke"] {
            style += &format!("[{part}=\"{light}\"] {{ {part}: {dark} }}\n");
        }
    }
    format!("{head}\n{style}}}\n</style>\n{rest}")
}

/// Of the background, [`INK`], and what [`colour`] returns.
const DARK: [(&str, &str); 9] = [
    ("#FFFFFF", "#0d1117"),
    ("#202020", "#f0f6fc"),
    ("#0072B2", "#3d9bd8"),
    ("#D55E00", "#e8772e"),
    ("#009E73", "#2fbf94"),
    ("#966E00", "#c99a1a"),
    ("#5A5A5A", "#9198a1"),
    ("#56B4E9", "#8fd0f5"),
    ("#CC79A7", "#e39cc6"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const WIDTH: u32 = 860;
/// Without the names of the lines.
const HEIGHT: u32 = 500;
const LEGEND_ROW: u32 = 24;

/// The same system has the same colour everywhere; the palette is for all kinds of eyes.
fn colour(system: &str) -> RGBColor {
    match system {
        crate::scenario::OURS => RGBColor(0, 114, 178),
        crate::jvm::NAME => RGBColor(213, 94, 0),
        name if name.starts_with("rslock") => RGBColor(0, 158, 115),
        name if name.contains("a task that wakes") => RGBColor(86, 180, 233),
        name if name.contains("default") => RGBColor(204, 121, 167),
        name if name.contains("redis-rs") => RGBColor(150, 110, 0),
        _ => RGBColor(90, 90, 90),
    }
}

const INK: RGBColor = RGBColor(32, 32, 32);

/// A logarithmic axis with a label at 1, 2, 5, 10, … or, where these are many, at the powers of ten, and thin lines between.
fn axis(values: impl Iterator<Item = f64>) -> WithKeyPoints<LogCoord<f64>> {
    let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    let range = least.min(most) * 0.95..most * 1.05;
    let decades = (range.start.log10().floor() as i32)..=(range.end.log10().ceil() as i32);
    let steps = |digits: &[f64]| -> Vec<f64> {
        let all = decades.clone().map(|decade| 10f64.powi(decade));
        all.flat_map(|power| digits.iter().map(move |digit| digit * power))
            .filter(|value| range.contains(value))
            .collect()
    };
    let mut bold = steps(&[1.0, 2.0, 5.0]);
    if bold.len() > 12 {
        bold = steps(&[1.0]);
    }
    let light = steps(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    range
        .log_scale()
        .with_key_points(bold)
        .with_light_points(light)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use plotters::coord::ranged1d::Ranged;

    use super::*;
    use crate::results::Row;
    use crate::sample::Sample;
    use crate::scenario::SCENARIOS;

    #[test]
    fn a_logarithmic_axis_has_its_ends_where_the_values_are() {
        let axis = axis([1.0, 256.0].into_iter());
        let Range { start, end } = axis.range();
        assert_eq!(
            (axis.map(&start, (0, 500)), axis.map(&end, (0, 500))),
            (0, 500)
        );
        assert_eq!(
            axis.bold_points(),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
        );
    }

    /// A row with latencies and with figures that grow with its size.
    fn row(system: &'static str, size: usize) -> Row {
        let nanos = (1..=2_000).map(|n| 40_000 + 200 * n * n / 100).collect();
        let mut sample = Sample::of_tasks(vec![nanos], std::time::Duration::from_secs(1));
        for figure in [sample::PER_SECOND, sample::CPU, sample::HEAP] {
            sample
                .figures
                .insert(figure, 1_000.0 * (size as f64).sqrt());
        }
        Row {
            system,
            rounds: vec![sample],
        }
    }

    #[test]
    fn every_plot_is_drawn_on_its_own_background_in_a_legible_size() {
        let folder = std::env::temp_dir().join(format!("bench-plots-{}", std::process::id()));
        let systems = [crate::scenario::OURS, crate::jvm::NAME, "floor: fred"];
        let rows = |size| systems.map(|system| row(system, size)).to_vec();
        let outcomes = SCENARIOS.map(|scenario| Outcome {
            scenario,
            rows: rows(1),
        });
        let sweeps = [sweeps::TASKS, sweeps::WAITERS, sweeps::HELD].map(|name| Sweep {
            name,
            points: [1, 8, 256].map(|size| (size, rows(size))).into(),
        });
        let drawn = draw(&folder, &outcomes, &sweeps).expect("drawn");
        assert_eq!(drawn.len(), 6);
        for (file, _) in drawn {
            let text = std::fs::read_to_string(folder.join(file)).expect("written");
            let background = "width=\"860\" height=\"558\" opacity=\"1\" fill=\"#FFFFFF\"";
            assert!(text.contains(background));
            for (_, rest) in text
                .match_indices("=\"#")
                .map(|(at, _)| text.split_at(at + 2))
            {
                assert!(
                    DARK.iter().any(|(light, _)| rest.starts_with(light)),
                    "{rest:.7}"
                );
            }
            let sizes = text.split("font-size=\"").skip(1).filter_map(|rest| {
                let size = rest.split('"').next()?;
                size.parse::<f64>().ok()
            });
            let smallest = sizes.fold(f64::MAX, f64::min);
            assert!((12.0..100.0).contains(&smallest), "{smallest}");
        }
        if std::env::var_os("KEEP_PLOTS").is_none() {
            let _ = std::fs::remove_dir_all(&folder);
        }
    }

    #[test]
    fn the_share_that_took_longer_falls_with_the_latency() {
        let nanos: Vec<u64> = (1..=1_000).map(|micros| micros * 1_000).collect();
        let line = slower_than(&nanos);
        assert!(
            line.windows(2)
                .all(|two| two[0].0 <= two[1].0 && two[0].1 > two[1].1)
        );
        let half = line.iter().find(|(_, share)| *share <= 0.5).expect("half");
        assert!((500.0..=530.0).contains(&half.0));
    }
}
