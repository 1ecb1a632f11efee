// Package parquet reads the rows of row groups of Parquet files.
//
// The library parquet-go decodes pages; this room stands between it and untrusted files. It walks the
// footer and the headers of pages first, so that no size in them is believed before it is compared with what is there,
// and decompresses with a bound. A panic of the library is an error. Rows come in order, a whole row group at a time;
// who needs one row keeps the records of its group (package spool).
package parquet
