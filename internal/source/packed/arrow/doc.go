// Package arrow reads single rows of Arrow IPC files and streams, which is how Hugging Face datasets are saved.
//
// [Open] walks the messages and keeps where each buffer of each record batch lies; [File.Read] then reads the few bytes
// of one row of one column through io.ReaderAt, whatever the size of the batch. Nothing that is read is trusted: every
// offset is checked against the buffer that it points into. It knows uncompressed batches of fixed widths, text,
// binary, decimals, lists, structs and dictionaries of flat values, which are in memory while the file is open. Columns
// of unions, maps and run-end encoding are walked over, and views are errors. The metadata is FlatBuffers, whose Go
// library has no verifier, so that this room has a small checked reader of its own.
package arrow
