//! Byte ranges, sets of them, and maps from them: the extent tree.
