// go-redis with its defaults against one node: strings, a pipeline, a transaction, WATCH.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func check(what string, err error) {
	if err != nil {
		fmt.Println("FAIL", what, err)
		os.Exit(1)
	}
}

func expect(what string, got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		fmt.Printf("FAIL %s: got %v, want %v\n", what, got, want)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	db := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	defer db.Close()

	check("set", db.Set(ctx, "go:a", "1", 0).Err())
	expect("get", db.Get(ctx, "go:a").Val(), "1")
	expect("missing", errors.Is(db.Get(ctx, "go:none").Err(), redis.Nil), true)
	check("set with expiry", db.Set(ctx, "go:x", "1", time.Minute).Err())
	expect("ttl", db.TTL(ctx, "go:x").Val(), time.Minute)
	expect("incr", db.IncrBy(ctx, "go:a", 41).Val(), 42)
	expect("setnx", db.SetNX(ctx, "go:a", "other", 0).Val(), false)
	check("mset", db.MSet(ctx, "go:m1", "x", "go:m2", "y").Err())
	expect("mget", db.MGet(ctx, "go:m1", "go:m2", "go:none").Val(), []any{"x", "y", nil})

	pipe := db.Pipeline()
	var counts []*redis.IntCmd
	for range 100 {
		counts = append(counts, pipe.Incr(ctx, "go:count"))
	}
	_, err := pipe.Exec(ctx)
	check("pipeline", err)
	for i, count := range counts {
		expect("pipelined INCR answers in order", count.Val(), i+1)
	}

	_, err = db.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Set(ctx, "go:t1", "1", 0)
		tx.Set(ctx, "go:t2", "2", 0)
		return nil
	})
	check("transaction", err)

	err = db.Watch(ctx, func(tx *redis.Tx) error {
		check("change behind the watch", db.Set(ctx, "go:a", "changed", 0).Err())
		_, err := tx.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			tx.Set(ctx, "go:a", "mine", 0)
			return nil
		})
		return err
	}, "go:a")
	expect("watch", errors.Is(err, redis.TxFailedErr), true)
	expect("after the watch", db.Get(ctx, "go:a").Val(), "changed")

	var keys int
	for scan := db.Scan(ctx, 0, "go:*", 10).Iterator(); scan.Next(ctx); {
		keys++
	}
	expect("scan", keys, 7)
	fmt.Println("go-redis ok")
}
