// A map as a datalet: go run . 127.0.0.1:7000
package main

import (
	"iter"
	"slices"

	"datalet/sartordatalet"
)

// Map is a store: a Go map, and an order to walk along.
type Map struct {
	pairs  map[string][]byte
	order  []string // The keys that were there when the last walk began, sorted.
	hasNew bool
}

func (m *Map) Capabilities() sartordatalet.Capabilities {
	return sartordatalet.Capabilities{Name: "map"}
}

func (m *Map) Get(key []byte) ([]byte, bool, error) {
	value, found := m.pairs[string(key)]
	return value, found, nil
}

func (m *Map) Put(key, value []byte) error {
	if _, found := m.pairs[string(key)]; !found {
		m.hasNew = true
	}
	m.pairs[string(key)] = value
	return nil
}

func (m *Map) Delete(key []byte) error {
	delete(m.pairs, string(key))
	return nil
}

// Walk sees what is there all the time: new keys can wait for the next walk, and deleted ones are passed over.
func (m *Map) Walk(after []byte, start bool) iter.Seq2[[]byte, []byte] {
	if start && m.hasNew {
		m.order, m.hasNew = m.order[:0], false
		for key := range m.pairs {
			m.order = append(m.order, key)
		}
		slices.Sort(m.order)
	}
	first := 0
	if !start {
		place, found := slices.BinarySearch(m.order, string(after))
		first = place
		if found {
			first++
		}
	}
	return func(yield func(key, value []byte) bool) {
		for _, key := range m.order[first:] {
			if value, found := m.pairs[key]; found && !yield([]byte(key), value) {
				return
			}
		}
	}
}

func (m *Map) Len() (uint64, error) {
	return uint64(len(m.pairs)), nil
}

func (m *Map) Clear() error {
	*m = Map{pairs: map[string][]byte{}}
	return nil
}

func main() {
	sartordatalet.Main(&Map{pairs: map[string][]byte{}})
}
