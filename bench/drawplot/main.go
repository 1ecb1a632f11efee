// Command drawplot draws a picture of internal/plot: it reads the Plot as JSON and writes an SVG file. Scripts that
// measure use it, so that all pictures have one look.
//
//	drawplot <plot.json >picture.svg
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"larder/internal/plot"
)

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drawplot:", err)
		os.Exit(1)
	}
}

func draw(r io.Reader, w io.Writer) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	var p plot.Plot
	if err := d.Decode(&p); err != nil {
		return fmt.Errorf("read a plot: %w", err)
	}
	_, err := io.WriteString(w, p.File())
	return err
}
