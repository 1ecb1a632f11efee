package config

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// DatasetConfig is what is configured for one dataset, by the name it was added under or its uri.
type DatasetConfig struct {
	Name   string
	Floor  Size   // of all tiers together; never auto
	Cap    Size   // auto = none
	Strata string // off | size | label
}

// Strata lists the static classes that a dataset's samples may be kept mixed by.
var Strata = []string{"off", "size", "label"}

const datasetsKey = "datasets"

var datasetAttributes = []string{"floor", "cap", "strata"}

// Dataset returns what is configured for a dataset under one of its names; the zero floor, no cap and no strata if
// nothing is.
func (c *Config) Dataset(names ...string) DatasetConfig {
	for _, n := range names {
		for _, d := range c.Datasets {
			if d.Name == n {
				return d
			}
		}
	}
	return DatasetConfig{Floor: Bytes(0), Strata: "off"}
}

// edit changes the configuration of one dataset; one that is as if nothing was configured goes.
func (c *Config) edit(name string, change func(*DatasetConfig)) {
	d := c.Dataset(name)
	d.Name = name
	change(&d)
	list := slices.DeleteFunc(slices.Clone(c.Datasets), func(o DatasetConfig) bool { return o.Name == name })
	if d.Floor != Bytes(0) || !d.Cap.IsAuto() || d.Strata != "off" {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b DatasetConfig) int { return strings.Compare(a.Name, b.Name) })
	c.Datasets = list
}

// datasetKey makes the key datasets.NAME.ATTRIBUTE; nil when it is none.
func datasetKey(key string) *Key {
	rest, ok := strings.CutPrefix(key, datasetsKey+".")
	if !ok {
		return nil
	}
	i := strings.LastIndexByte(rest, '.')
	if i <= 0 || i > 4096 || checkPath(rest[:i]) != nil {
		return nil
	}
	name, attribute := rest[:i], rest[i+1:]
	k := Key{Name: key, path: []string{datasetsKey, name, attribute}}
	switch attribute {
	case "floor":
		k.Kind, k.Apply, k.value = "size", Live, floorOf(name)
		k.Doc = "memory of all tiers together that no other dataset takes from it"
	case "cap":
		k.Kind, k.Apply, k.value = "size | none", Live, capOf(name)
		k.Doc = "memory of all tiers together that it may have"
	case "strata":
		k.Kind, k.Apply, k.value, k.See = strings.Join(Strata, " | "), NewJobs, strataOf(name), "guarantees.md#g2-order"
		k.Doc = "property of its samples that every order keeps mixed, from its first job on"
	default:
		return nil
	}
	return &k
}

func floorOf(dataset string) value {
	return value{
		set: func(c *Config, s string) error {
			v, err := ParseSize(s)
			switch {
			case err != nil:
				return err
			case v.IsAuto():
				return errors.New("a floor is bytes or a percentage; 0 is none")
			case v.Of(1<<40) == 0:
				v = Bytes(0)
			}
			c.edit(dataset, func(d *DatasetConfig) { d.Floor = v })
			return nil
		},
		get: func(c *Config) string { return c.Dataset(dataset).Floor.String() },
	}
}

func capOf(dataset string) value {
	return value{
		set: func(c *Config, s string) error {
			v := Auto
			if s != "none" {
				var err error
				if v, err = ParseSize(s); err != nil {
					return err
				}
				if v.IsAuto() {
					return errors.New("a cap is bytes, a percentage, or none")
				}
			}
			c.edit(dataset, func(d *DatasetConfig) { d.Cap = v })
			return nil
		},
		get: func(c *Config) string {
			if v := c.Dataset(dataset).Cap; !v.IsAuto() {
				return v.String()
			}
			return "none"
		},
	}
}

func strataOf(dataset string) value {
	return value{
		set: func(c *Config, s string) error {
			if err := oneOf("a kind of strata", Strata...)(s); err != nil {
				return err
			}
			c.edit(dataset, func(d *DatasetConfig) { d.Strata = s })
			return nil
		},
		get: func(c *Config) string { return c.Dataset(dataset).Strata },
	}
}

// KeysOf returns the keys of one dataset, by the name it was added under or its URI.
func KeysOf(dataset string) []Key {
	var own []Key
	for _, a := range datasetAttributes {
		own = append(own, *datasetKey(datasetsKey + "." + dataset + "." + a))
	}
	return own
}

// Keys lists every key of this configuration, those of its datasets and stores last.
func (c *Config) Keys() []Key {
	all := Keys()
	for _, d := range c.Datasets {
		all = append(all, KeysOf(d.Name)...)
	}
	return append(all, c.keysOfStores()...)
}

// bothKeys are the keys of two configurations.
func bothKeys(a, b *Config) []Key {
	all := a.Keys()
	seen := map[string]bool{}
	for _, k := range all {
		seen[k.Name] = true
	}
	for _, k := range b.Keys() {
		if !seen[k.Name] {
			all = append(all, k)
		}
	}
	return all
}

// Quotas reports whether any dataset has a floor or a cap.
func (c *Config) Quotas() bool {
	return slices.ContainsFunc(c.Datasets, func(d DatasetConfig) bool { return d.Floor != Bytes(0) || !d.Cap.IsAuto() })
}

// Clone returns a copy that shares nothing.
func (c *Config) Clone() *Config {
	d := *c
	d.origins, d.Datasets, d.Stores = maps.Clone(c.origins), slices.Clone(c.Datasets), slices.Clone(c.Stores)
	return &d
}
