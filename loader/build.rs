//! Builds the eBPF object that the agent embeds, through the function that `cargo xtask
//! build-ebpf` calls too.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context as _, Result};
use datapath_build::Lines;

fn main() -> Result<()> {
    for source in datapath_build::sources() {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    println!("cargo:rerun-if-env-changed=EBPF_TOOLCHAIN");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("CARGO_CFG_TARGET_ARCH")?;
    let endian = env::var("CARGO_CFG_TARGET_ENDIAN").context("CARGO_CFG_TARGET_ENDIAN")?;
    let debug_log = env::var_os("CARGO_FEATURE_DEBUG_LOG").is_some();
    let built = datapath_build::build(&arch, &endian, debug_log)?;
    // A debug build's says more, as the rest of it does.
    let lines = match env::var("PROFILE").context("PROFILE")?.as_str() {
        "debug" => Lines::Kept,
        _release => Lines::Forgotten,
    };
    let object = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR")?).join("datapath.o");
    fs::write(&object, datapath_build::strip(&fs::read(built)?, lines)?)?;
    println!(
        "cargo:rustc-env=TOWPATH_DATAPATH_OBJECT={}",
        object.display()
    );
    Ok(())
}
