-- ARGV: fresh timeline, lease.
end_lease(ARGV[2], ARGV[1])
return 1
