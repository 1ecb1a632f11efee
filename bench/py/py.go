// Package py holds the Python scripts that measure larder from the outside, beside PyTorch and its peers; bench/doc.go
// lists them. Go needs one of them: the training that `larder bench live --torch` runs.
package py

import _ "embed"

// Train is train.py: one job that trains a small network on batches of larder, and reports each step as a line of JSON.
//
//go:embed train.py
var Train []byte
