// Package record is the form of a sample that is no image: named fields in one block of bytes.
//
// A [Schema] names the fields and says what each may hold: an array of a dtype and a shape (-1 marks a ragged
// dimension), bytes, text or a scalar. A record has the values of one sample in the order of the schema, behind a
// header of sizes and offsets; the names are in the schema alone (docs/protocol.md#records has the bytes):
//
//	header │ kind, dtype, dims, offset, bytes of each field │ values, each aligned to 64 bytes
//
// Records come from processes that larder does not trust. [Open] checks that every offset and size lies inside the
// block, [Schema.Validate] also that it fits the schema. Both read the block more than once: hand them memory that
// nobody else can write. A [View] gives the fields of a checked record without a copy, [Encode] makes a record, and
// [Seal] and [Intact] write and check its checksum.
package record
