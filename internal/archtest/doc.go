// Package archtest holds no code: its tests keep the walls of the house (design: docs/architecture.md). They fail, with
// the reason, when a room imports what it must not, or when a pure room does something that is not a decision.
package archtest
