//! One world of the explorer in a browser. An example, because every test of this package would link a binary.

use stateright::Model;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let worlds = explorer::all().into_iter().chain(explorer::deep());
    let names: Vec<_> = worlds.clone().map(|world| world.name).collect();
    match worlds.into_iter().find(|world| world.name == name) {
        Some(world) => {
            println!("{name} at http://127.0.0.1:3000");
            world.checker().serve("127.0.0.1:3000");
        }
        None => println!(
            "there is no world `{name}`; there are: {}",
            names.join(", ")
        ),
    }
}
