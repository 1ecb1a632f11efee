package tiers_test

import (
	"fmt"

	"larder/internal/ident"
	"larder/tiers"
)

// A writer allocates room for an entry, fills it and commits it. Readers open views of it, and close them.
func Example() {
	store, err := tiers.Open(tiers.Config{Budgets: [ident.NumForms]int64{ident.Decoded: 1 << 20}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	key := ident.Key{Object: 7, Form: ident.Decoded}
	buf, err := store.Alloc(key, 12)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(buf.Bytes, "twelve bytes")
	if err := buf.Commit(tiers.Meta{Width: 2, Height: 2, Channels: 3}); err != nil {
		fmt.Println(err)
		return
	}

	view, err := store.Open(key)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, %d x %d\n", view.Bytes, view.Meta.Width, view.Meta.Height)

	store.Free(key) // what the coordinator's eviction does; the view stays valid
	fmt.Printf("%s\n", view.Bytes)
	view.Close()
	_, err = store.Open(key)
	fmt.Println(err)
	// Output:
	// twelve bytes, 2 x 2
	// twelve bytes
	// tiers: the entry is gone
}
