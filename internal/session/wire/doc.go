// Package wire is the byte form of the local session (docs/protocol.md): frames, their fixed payloads, the JSON form of
// messages and errors, and where the socket is by default. Daemon and Go client share it.
//
// It opens no socket and starts nothing. Whatever it parses came from another process: it refuses with a PROTOCOL
// error and never panics, and it takes memory only for bytes that really arrived.
package wire
