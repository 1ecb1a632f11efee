package client_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"larder/internal/config"
	larderd "larder/internal/daemon"
)

// exampleDaemon serves a dataset of 12 images in a folder of its own until stop is called.
func exampleDaemon() (socket, dataset string, stop func()) {
	dir, err := os.MkdirTemp("", "lc-") // short: the path of a socket has at most 107 bytes
	for i := range 12 {
		file := filepath.Join(dir, "photos", "class", fmt.Sprintf("%02d.ppm", i))
		image := "P6 16 16 255\n" + strings.Repeat("abc", 16*16)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(image), 0o600))
	}
	text := fmt.Sprintf("socket: %s/s\nstate: {dir: none}\nsource: {index_dir: %s/index}\nprep: {workers: 1}\n", dir, dir)
	cfg, cerr := config.LoadContent("example", []byte(text), nil, nil)
	if err := errors.Join(err, cerr); err != nil {
		panic(err)
	}
	d, err := larderd.Open(larderd.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Level: new(slog.LevelVar),
		Version: "example"})
	if err != nil {
		panic(err)
	}
	return cfg.Socket, "imagefolder:" + dir + "/photos", func() {
		if err := errors.Join(d.Close(), os.RemoveAll(dir)); err != nil {
			panic(err)
		}
	}
}
