// Command run computes reproductions and writes what they print:
//
//	go run larder/bench/reproductions/run [-write] [NAME…]
//
// Without -write it compares with expected.json and exits with 1 when something differs. With -write and no names it writes every
// expected.json and docs/reproductions.md. It runs in the root of the repository.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"larder/bench/reproductions"
)

func main() {
	write := flag.Bool("write", false, "write expected.json, and the page when all are run")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(write bool, names []string) error {
	every := len(names) == 0
	if every {
		for _, r := range reproductions.All() {
			names = append(names, r.Name)
		}
	}
	results := map[string]*reproductions.Result{}
	failed := 0
	for _, name := range names {
		r, err := reproductions.Run(name)
		if err != nil {
			return err
		}
		results[name] = r
		for _, row := range r.Rows {
			fmt.Printf("%s: %s: published %s, ours %v: %s\n", name, row.What, row.Published, row.Ours, row.Verdict)
		}
		raw, err := r.Marshal()
		if err != nil {
			return err
		}
		path := filepath.Join("bench", "reproductions", name, "expected.json")
		if write {
			if err := os.WriteFile(path, raw, 0o644); err != nil { //nolint:gosec // a file of the repository
				return err
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(want, raw) {
			failed++
			fmt.Printf("%s: this is not what %s has\n", name, path)
		}
	}
	if write && every {
		return os.WriteFile(filepath.Join("docs", "reproductions.md"), []byte(reproductions.Page(results)), 0o644) //nolint:gosec // a page of the repository
	}
	if failed > 0 {
		return fmt.Errorf("%d reproductions changed; run with -write when that is meant", failed)
	}
	return nil
}
