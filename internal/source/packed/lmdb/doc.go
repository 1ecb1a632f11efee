// Package lmdb reads the file of an LMDB environment, data.mdb: the keys of one of its databases in order, and where
// their values lie.
//
// It reads pages through io.ReaderAt. It maps nothing, takes no lock and never opens lock.mdb, so that it works on
// read-only media, in stores and beside a writer that it cannot disturb. The file is not trusted: a page that is
// reached twice, lies outside the file or holds nodes outside itself is an error. It reads the format of LMDB 0.9 on
// machines of 64 bits, little-endian; it does not write, and supports no duplicate keys.
package lmdb
