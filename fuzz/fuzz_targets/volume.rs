//! A volume of which some blocks say something else: opened, used, checked, repaired.
#![no_main]

byteback_fuzz::target!(byteback_volume::fuzzing::volume, byteback_volume::fuzzing::volume_seeds);
